# mkdirall PATH PARENT UMASK MODE OWNER: MODE in octal, OWNER as chown takes it or empty.
parents "$2" "$3"
if [ -L "$1" ]; then
	[ -d "$1" ] || fail "Not a directory"
	exit 0
fi
if [ ! -d "$1" ]; then
	[ ! -e "$1" ] || fail "Not a directory"
	mkdir -- "$1" 2>/dev/null || [ -d "$1" ] || mkdir -- "$1"
fi
[ -z "$5" ] || chown -h "$5" -- "$1"
now=$(stat -c %a -- "$1")
want=$(printf %o $((0$4 | 0$now & 07000)))
[ "$now" = "$want" ] || chmod "0$want" -- "$1"
