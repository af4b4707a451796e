#!/bin/sh
# A root shell on the serial console, from the first press of Enter on: until then nothing stands on the console but
# what the guest says. Whoever can open the console's socket on the host owns the guest anyway.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin HOME=/root PS1='\h:\w# '
read -r _ || exit 0
cd /root || exit 1
exec /bin/sh -i
