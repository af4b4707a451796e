#!/bin/sh
# Gives the role postgres the password of the VM's secret, at the start and whenever the secret changes. The runner pushes the
# file into a directory in memory that only root may enter. A VM without such a secret has no password: nobody from outside the
# guest gets in.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin
. /usr/lib/bellows/say
dir=/run/bellows/postgres
[ -d $dir ] || exec sleep 2147483647

# By the environment and standard input: a command line is for everybody to read, and so is the log of a failed statement.
set_password() {
    PASSWORD=$1 psql -qX -h /tmp -U postgres -d postgres -v ON_ERROR_STOP=1 << 'END'
\getenv password PASSWORD
SET log_statement = none;
SET log_min_duration_statement = -1;
SET log_min_error_statement = panic;
SET password_encryption = 'scram-sha-256';
ALTER ROLE postgres PASSWORD :'password';
END
}

known=
while true; do
    word=
    # A file without a line's end is read, too.
    [ ! -r $dir/password ] || IFS= read -r word < $dir/password
    if [ -n "$word" ] && [ "$word" != "$known" ]; then
        until pg_isready -q -h /tmp -U postgres -d postgres; do
            usleep 50000
        done
        if set_password "$word"; then
            known=$word
            : > /run/bellows/postgres.set
            say "the password of postgres is set"
        fi
    fi
    if [ -n "$known" ] || [ -n "$word" ]; then sleep 5; else usleep 100000; fi
done
