# notempty PATH: checks that PATH is a regular file, without opening it. If it is empty, the
# script ends: most termination messages are, and this starts no program.
[ ! -L "$1" ] || fail "it is a symbolic link: Too many levels of symbolic links"
[ -f "$1" ] || refuse "$1"
[ -s "$1" ] || exit 0
