#!/bin/bash
# Runs in a guest under systemd: what the updater does with the monitor, one line each, then the end.
say() { echo "LOOK $*"; }

drop_in=/run/systemd/system/bellows-upgrade.timer.d/10-window.conf
channel=/srv/releases/v1/stable
show() { systemctl show vm-monitor --value --property "$1"; }
version() { dpkg-query --show --showformat='${Version}' "${1:-vm-monitor}"; }

# Waits for a state, at most a minute.
await() {
    for _ in $(seq 300); do
        "$@" > /dev/null 2>&1 && return 0
        sleep 0.2
    done
    say "waited in vain for $*"
    systemctl status --no-pager --full 'bellows-*' vm-monitor
    return 1
}

runs() { [ "$(show ActiveState)" = active ] && [ -d /run/vm-monitor ]; }
absent() { [ ! -e "$1" ]; }

# Whether the timer has the times of its drop-in, and of its own.
times() { systemctl show bellows-upgrade.timer --property TimersCalendar,TimersMonotonic | sed -n 's/.*{ \([A-Za-z]*\)=.*/\1/p' | sort | tr '\n' ' '; }

# Whether the schedule was read since the run of that id.
was_read() {
    [ "$(invocation)" != "$1" ] && ! systemctl show bellows-schedule.service --value --property ActiveState | grep -q activating
}
invocation() { systemctl show bellows-schedule.service --value --property InvocationID; }

schedule() {
    await runs || return 1
    before=$(invocation)
    echo 'Sat,Sun *-*-* 02,03:00/20:00 UTC' > /run/vm-monitor/schedule
    await was_read "$before" && await test -e "$drop_in"
}

upgrade() {
    # Attempts are half an hour apart.
    rm -f /var/lib/bellows-updater/state.json
    systemctl start bellows-upgrade.service
    say "$1: upgrade $(systemctl show bellows-upgrade.service --value --property ExecMainStatus)" \
        "version $(version) unit $(show UnitFileState) $(show ActiveState)"
}

starts() { wc -l < /run/starts; }
settings() { cat /etc/default/vm-monitor /etc/bellows/updater.toml /etc/apt/sources.list.d/bellows.sources | md5sum | cut -c -32; }
other() { systemctl show other --value --property MainPID; }
apt() {
    apt-get --quiet=2 --yes --option Dir::Etc::sourceparts=- \
        --option Dir::Etc::sourcelist=/etc/apt/sources.list.d/bellows.sources "$@"
}
equal() { [ "$1" = "$2" ] && echo yes; }

# Both packages are of an older version.
await runs
systemd-run --quiet --unit other sleep infinity
first=$(starts) kept=$(settings) pid=$(other)
export DEBIAN_FRONTEND=noninteractive
apt update && apt install vm-monitor=0.1.0 bellows-updater=0.1.0
say "apt $?: monitor $(version) updater $(version bellows-updater)"
await runs
say "one more start: $(equal $((first + 1)) "$(starts)")," \
    "of the new program: $(cmp -s "/proc/$(show MainPID)/exe" /usr/bin/vm-monitor && echo yes)"
say "settings kept: $(equal "$kept" "$(settings)"), other service untouched: $(equal "$pid" "$(other)")," \
    "timers $(systemctl is-active bellows-upgrade.timer bellows-upgrade-check.timer bellows-schedule.path | xargs)"

say "times without a schedule: $(times)"
schedule && say "times with a schedule: $(times)"
say "drop-in of mode $(stat -c %a "$drop_in"): $(tr '\n' '|' < "$drop_in")"

printf '*-*-* 02:00:00 UTC\nUnit=poweroff.target\n' > /run/vm-monitor/schedule
await systemctl is-failed bellows-schedule.service
say "injection: drop-in has $(grep -c Unit "$drop_in") units"
systemctl reset-failed bellows-schedule.service

for signal in STOP ABRT KILL; do
    schedule || continue
    if [ "$signal" = STOP ]; then systemctl stop vm-monitor; else kill -"$signal" "$(show MainPID)"; fi
    await absent "$drop_in" && say "$signal clears the schedule"
    systemctl start vm-monitor
done

schedule
echo 0.1.1 > "$channel/version"
systemctl start bellows-upgrade-check.service
say "not critical: schedule $(test -e "$drop_in" && echo kept)"
echo yes > "$channel/critical"
systemctl start bellows-upgrade-check.service
say "critical: schedule $(test -e "$drop_in" || echo removed), version $(version), times $(times)"

before=$(show MainPID)
upgrade "new version"
say "process is another: $([ "$before" != "$(show MainPID)" ] && echo yes)"
say "state of mode $(stat -c %a /var/lib/bellows-updater), settings $(stat -c %a /etc/bellows/updater.toml)"
before=$(show MainPID)
upgrade "same version"
say "process is the same: $([ "$before" = "$(show MainPID)" ] && echo yes)"

systemctl mask --now vm-monitor > /dev/null 2>&1
upgrade masked
rm /usr/bin/vm-monitor
kill -9 "$(show MainPID)"
upgrade deleted
kill -STOP "$(show MainPID)"
upgrade hung
systemctl stop vm-monitor
upgrade stopped

# This version's program ends at once.
echo 0.1.2 > "$channel/version"
upgrade "bad version"
say "last: $(bellows-updater status -o json | grep -o '"result":"[a-z_]*"')"
systemctl start bellows-upgrade.service
say "at once again: version $(version), attempts $(bellows-updater status -o json | grep -o '"attempts":[0-9]*')"

dpkg --remove bellows-updater > /dev/null 2>&1
say "removed: $(systemctl is-active bellows-upgrade.timer bellows-schedule.path | tr '\n' ' ')monitor $(show ActiveState)"
systemctl poweroff --force
