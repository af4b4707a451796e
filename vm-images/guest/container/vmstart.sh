#!/neonvm/bin/sh
# Runs the program that the image is for, as the image says where the VM does not say otherwise. init starts it again when it
# ends, unless the guest is about to end.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
[ -e /neonvm/vmstart.allowed ] || exec /neonvm/bin/sleep 5
. /neonvm/lib/say
image=/neonvm/etc/image
runtime=/neonvm/runtime

# Words of the shell, quoted by whoever wrote the file.
words() {
    for file in "$@"; do
        if [ -s "$file" ]; then
            /neonvm/bin/cat "$file"
            return
        fi
    done
}
command=$(words $runtime/command.sh $image/entrypoint)
arguments=$(words $runtime/args.sh $image/cmd)
if [ -z "$command$arguments" ]; then
    say "neither image nor VM names a program to run"
    exec /neonvm/bin/sleep 2147483647
fi
. $image/user
. $image/env
[ ! -s $runtime/env.sh ] || . $runtime/env.sh
eval "set -- $command $arguments"
/neonvm/bin/mkdir -p "$workdir"
cd "$workdir" || exit 1
echo 0 > /sys/fs/cgroup/program/cgroup.procs
read -r begun _ < /proc/uptime
# The lock tells the shutdown that the program still runs. What the program starts does not hold it.
/neonvm/bin/flock -o -x /neonvm/vmstart.lock \
    /neonvm/bin/setpriv --reuid "$uid" --regid "$gid" $groups -- "$@"
status=$?
read -r ended _ < /proc/uptime
echo 0 > /sys/fs/cgroup/system/cgroup.procs
say "the program ended with status $status after $((${ended%.*} - ${begun%.*})) s"
# One that cannot start must not fill the console.
[ $((${ended%.*} - ${begun%.*})) -ge 2 ] || /neonvm/bin/sleep 2
