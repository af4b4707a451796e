#!/bin/sh
# trial SERVICE: waits until the trial of the service's program is over. If nobody has kept the program by then, the former one
# runs again. It needs neither the guest daemon nor the host.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
. /usr/lib/bellows/say
. /usr/lib/bellows/parts
part "$1" || exit 64
read -r token end _ 2> /dev/null < "$home/trial" || exit 0
while
    read -r now _ 2> /dev/null < "$home/trial" && [ "$now" = "$token" ] || exit 0
    read -r up _ < /proc/uptime
    left=$((end - ${up%.*}))
    # Longer than any trial: the guest has booted since.
    [ $left -gt 0 ] && [ $left -le 600 ]
do
    sleep 1
done
slot=$(readlink "$home/current")
pid=
[ ! -e "$run.pid" ] || read -r pid < "$run.pid"
take_back "the host did not keep it in time" || exit 0
if [ -n "$pid" ] && [ "$slot" != "$back" ] && [ "$(readlink "/proc/$pid/exe")" = "$home/$slot/program" ]; then
    # A program that hangs heeds no milder signal. The next start finishes the return.
    kill -9 "$pid" && exit 0
fi
finish_return
