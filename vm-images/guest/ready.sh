#!/bin/sh
# ready LINE: says LINE on the console once the database (if there is one) takes connections by the VM's password.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
. /usr/lib/bellows/say
if [ -d /srv/pg/data ]; then
    until [ -S /tmp/.s.PGSQL.5432 ] && pg_isready -q -h /tmp -U postgres -d postgres; do
        usleep 50000
    done
    # Who reads the line connects, and needs the password of the VM's secret. Where it does not come the guest is ready without.
    tries=0
    while [ -d /run/bellows/postgres ] && [ ! -e /run/bellows/postgres.set ] && [ $tries -lt 400 ]; do
        usleep 50000
        tries=$((tries + 1))
    done
fi
say "$*"
: > /run/ready
# A disk larger than the image's file system: grow into it.
disk=$(cat /sys/class/block/vda/size)
if [ $((disk / 8)) -gt "$(stat -f -c %b /)" ] && ! resize2fs /dev/vda > /run/resize2fs.log 2>&1; then
    say "cannot grow the root file system: $(tail -n 1 /run/resize2fs.log)"
fi
