#!/neonvm/bin/sh
# command NAME: runs the command of that name of the image's specification as its user.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/neonvm/bin
ulimit -c unlimited
. "/neonvm/commands/$1.user"
shell=/bin/sh
[ -x $shell ] || shell=/neonvm/bin/sh
exec su -p -s $shell "$user" -c "$(cat "/neonvm/commands/$1.sh")"
