# Sourced: programs of this guest that its host replaces while it runs. The guest daemon keeps the same files.

# part SERVICE: sets part, home and run of a service that is a part. Fails for any other.
part() {
    case $1 in
        vm-monitor) part=monitor ;;
        neonvmd) part=guestd ;;
        *) return 1 ;;
    esac
    home=/var/lib/bellows/parts/$part
    run=/run/bellows/parts/$part
}

# on_trial: whether a program of the part is on trial, or its return is not finished.
on_trial() {
    [ -e "$home/trial" ] || [ -e "$home/returning" ]
}

# take_back REASON: ends a trial badly, for the program that ran before. Sets back to its folder.
take_back() {
    # This rename decides against an order to keep the program. On a read-only disk it fails and the file stays.
    mv "$home/trial" "$home/returning" 2> /dev/null
    file=$home/returning
    [ -e "$file" ] || file=$home/trial
    token=
    back=
    read -r token _ back 2> /dev/null < "$file"
    if [ -z "$back" ]; then
        # The guest daemon may have finished the same return. An unreadable trial goes back to the image's program.
        [ -e "$file" ] || return 1
        token=unreadable
    fi
    case $back in
        a | b) ln -sfn "$back" "$home/current" ;;
        *) rm -f "$home/current" ;;
    esac
    rm -f "$run.fresh"
    noted=
    [ ! -e "$home/note" ] || read -r noted _ < "$home/note"
    [ "$noted" = "$token" ] || printf "%s %s\n" "$token" "$1" > "$home/note"
    say "$part: the program on trial goes back: $1"
}

# The return is finished: the former program starts next.
finish_return() {
    rm -f "$home/returning"
}
