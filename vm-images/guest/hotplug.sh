#!/bin/sh
# Run for every event of the kernel: a CPU that is plugged stays offline until somebody brings it up.
if [ "$SUBSYSTEM" = cpu ] && [ "$ACTION" = add ]; then
    echo 1 > "/sys$DEVPATH/online"
fi
