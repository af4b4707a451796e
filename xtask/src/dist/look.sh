#!/bin/bash
# Runs in a guest under systemd: what became of the unit, one line each, then the end.
say() { echo "LOOK $*"; }

page() {
    exec 3<>/dev/tcp/127.0.0.1/9100 || return 1
    printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3
    cat <&3
    exec 3>&-
}

# Its triggers are armed a moment after it listens.
answers() {
    for _ in $(seq 300); do
        page > /run/page 2> /dev/null && grep -q '^vm_monitor_kernel_signals [1-9]' /run/page && return 0
        sleep 0.2
    done
    say no answer
    return 1
}

show() { systemctl show vm-monitor --value --property "$1"; }

if answers; then
    pid=$(show MainPID)
    group=/sys/fs/cgroup/$VM_MONITOR_CGROUP
    say state "$(show ActiveState)" user "$(show User)" restarts "$(show NRestarts)"
    for line in CapEff CapBnd NoNewPrivs Seccomp; do
        say "$(grep "^$line:" "/proc/$pid/status" | tr -s '\t ' ' ')"
    done
    say oom_score_adj "$(cat "/proc/$pid/oom_score_adj")"
    for file in memory.pressure memory.reclaim memory.high; do
        say "$file of $(stat -c %U "$group/$file")"
    done
    say "$(grep '^vm_monitor_kernel_signals ' /run/page)"
    # What kills it in earnest must not end the watch over memory.
    kill -9 "$pid"
    while [ "$(show MainPID)" = "$pid" ]; do sleep 0.1; done
    answers && say state "$(show ActiveState)" user "$(show User)" restarts "$(show NRestarts)"
    dpkg --remove vm-monitor > /dev/null 2>&1
    say removed "$(show ActiveState)" "$(id -un vm-monitor)"
fi
systemctl poweroff --force
