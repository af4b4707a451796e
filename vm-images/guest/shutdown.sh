#!/bin/sh
# init runs this when the guest is to end, before it ends what is left: the database must write a last checkpoint.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
. /usr/lib/bellows/say
say SHUTDOWN
if [ -e /srv/pg/data/postmaster.pid ]; then
    su -s /bin/sh postgres -c 'pg_ctl stop -D /srv/pg/data -m fast -w -t 60' > /dev/console 2>&1
fi
sync
say "POWER OFF"
