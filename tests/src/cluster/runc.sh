#!/bin/sh
# runc. Without the right CAP_SYS_RESOURCE (bit 24), which sandboxes often keep back, nothing asks for it and no score is lowered.
while read -r key value; do
    [ "$key" != CapEff: ] || break
done < /proc/self/status
case $value in
    ?????????[13579bdf]*) exec /usr/sbin/runc "$@" ;;
esac
next="" file=""
for word in "$@"; do
    case $next in
        bundle) file=$word/config.json ;;
        process) file=$word ;;
    esac
    next=""
    case $word in
        --bundle | -b) next=bundle ;;
        --bundle=*) file=${word#*=}/config.json ;;
        --process | -p) next=process ;;
        --process=*) file=${word#*=} ;;
    esac
done
if [ -f "$file" ]; then
    sed -i 's/"CAP_SYS_RESOURCE",//g; s/,"CAP_SYS_RESOURCE"//g; s/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$file"
fi
exec /usr/sbin/runc "$@"
