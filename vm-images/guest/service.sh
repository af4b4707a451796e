#!/bin/sh
# service NAME: runs the program described by /etc/bellows/services/NAME in its cgroup, as its user, its output to the
# log. init starts it again when it ends. A program that the host has brought replaces that of the image.
# service NAME --self-test FILE: runs FILE in the same way with --self-test, for at most 10 s.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
. /usr/lib/bellows/say
. /usr/lib/bellows/parts
name=$1
tested=
[ "$2" != --self-test ] || tested=$3
user=root
group=system
directory=
owns=
after_ready=
. "/etc/bellows/services/$name"

part=
if [ -z "$tested" ] && part "$name"; then
    starts=0
    [ ! -s "$run.starts" ] || read -r starts < "$run.starts"
    echo $((starts + 1)) > "$run.starts"
    slot=$(readlink "$home/current")
    if [ -e "$home/trial" ] && rm "$run.fresh" 2> /dev/null; then
        # Ordered by the guest daemon: the first start of the program on trial.
        setsid /usr/lib/bellows/trial "$name" < /dev/null > /dev/null 2>&1 &
    elif on_trial; then
        reason="it ended"
        [ ! -s "$run.ended" ] || reason=$(cat "$run.ended")
        if take_back "$reason"; then
            slot=$back
            finish_return
        else
            slot=$(readlink "$home/current")
        fi
    fi
    case $slot in
        a | b)
            if [ -x "$home/$slot/program" ]; then
                shift
                set -- "$home/$slot/program" "$@"
            fi
            ;;
    esac
fi
if [ -n "$tested" ]; then
    shift
    set -- "$tested" "$@" --self-test
fi
if [ ! -x "$1" ]; then
    say "$name is not in this image ($1)"
    exec sleep 2147483647
fi
[ -z "$directory" ] || mkdir -p "$directory"
for file in $owns; do
    [ ! -e "$file" ] || chown "$user" "$file"
done
# What an agent must show to the monitor. The drive's file is root's; the monitor's user reads a copy.
token=/neonvm/runtime/monitor.token
if [ "$name" = vm-monitor ] && [ -s $token ]; then
    copy=/run/$name.token
    if [ -z "$tested" ] || [ ! -s "$copy" ]; then
        rm -f "$copy"
        (umask 077 && cat $token > "$copy")
        chown "$user" "$copy"
    fi
    set -- "$@" --agent-token-file "$copy"
fi
if [ -n "$tested" ]; then
    echo 0 > "/sys/fs/cgroup/$group/cgroup.procs"
    [ "$user" = root ] && exec timeout -s KILL 10 "$@"
    exec setpriv --nnp su -s /bin/sh "$user" -c 'exec timeout -s KILL 10 "$0" "$@"' -- "$@"
fi
# What nobody waits for leaves the processor to what somebody does, but not for ever.
tries=0
while [ -n "$after_ready" ] && [ ! -e /run/ready ] && [ $tries -lt 300 ]; do
    usleep 200000
    tries=$((tries + 1))
done

status=/run/$name.status
read -r begun _ < /proc/uptime
{
    (
        # "0" is the writer itself: this subshell, which becomes the program.
        echo 0 > "/sys/fs/cgroup/$group/cgroup.procs"
        # What keeps the guest manageable is the last to be killed for memory.
        echo -900 > /proc/self/oom_score_adj
        if [ -n "$part" ]; then
            # Of this subshell.
            read -r pid _ < /proc/self/stat
            echo "$pid" > "$run.pid"
        fi
        [ "$user" = root ] && exec "$@"
        # Nothing that a service starts can become more than the service is.
        exec setpriv --nnp su -s /bin/sh "$user" -c 'exec "$0" "$@"' -- "$@"
    )
    echo $? > "$status"
} 2>&1 | logger -t "$name"
read -r ended _ < /proc/uptime
begun=${begun%.*}
if [ -n "$part" ] && [ -s "$run.tried" ] && [ -e "$home/trial" ]; then
    # The program on trial may have been executed by a process that began as the former one.
    read -r of_trial _ 2> /dev/null < "$home/trial"
    read -r tried since < "$run.tried"
    [ "$tried" != "$of_trial" ] || [ "$since" -le "$begun" ] || begun=$since
fi

# A shell's word for a signal is not the program's.
last=$(logread | grep " $name: " | grep -Ev ": (Aborted|Bus error|Illegal instruction|Killed|Segmentation fault)$" | tail -n 1)
words="ended with status $(cat "$status") after $((${ended%.*} - begun)) s; its last words: ${last#* $name: }"
say "$name $words"
if [ -n "$part" ]; then
    echo "it $words" > "$run.ended"
    # The former program starts at once.
    ! on_trial || exit 0
fi
# init itself waits a second; a program that cannot start must not fill the console.
[ $((${ended%.*} - begun)) -ge 5 ] || sleep 4
