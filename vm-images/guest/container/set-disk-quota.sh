#!/neonvm/bin/sh
# set-disk-quota KIB DIRECTORY: all files of the disk mounted at DIRECTORY may take so much; 0 is no bound.
if [ $# != 2 ]; then
    echo "usage: set-disk-quota KIB DIRECTORY" >&2
    exit 64
fi
exec /neonvm/bin/setquota -P 0 0 "$1" 0 0 "$2"
