#!/neonvm/bin/sh
# init runs this when the guest is to end, before it ends what is left. The marker is gone first, so that nothing starts the
# program again; then the hook is run until the program has ended.
export PATH=/neonvm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
. /neonvm/lib/say
say SHUTDOWN
rm -f /neonvm/vmstart.allowed
if [ -s /neonvm/etc/shutdown-hook ]; then
    until flock -n /neonvm/vmstart.lock true; do
        sh /neonvm/etc/shutdown-hook > /dev/console 2>&1
        usleep 500000
    done
    say "the program has ended"
fi
sync
say "POWER OFF"
