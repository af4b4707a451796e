#!/bin/sh
# acpid runs this when the host presses the power button.
exec /sbin/poweroff
