# mkdirall PATH PARENT UMASK MODE OWNER: MODE in octal, OWNER as chown takes it or empty.
if [ -L "$1" ]; then
	[ -d "$1" ] || fail "Not a directory"
	exit 0
fi
if [ ! -e "$1" ]; then
	umask "$3"
	if mkdir -p -m "$4" -- "$1" 2>/dev/null; then
		[ -n "$5" ] || exit 0
	else
		parents "$2" "$3"
		mkdir -- "$1"
	fi
fi
[ -d "$1" ] || fail "Not a directory"
# The names above may be links. The last may become one at any time, where a pod can
# write: it is entered, and what is changed is the working directory.
cd -P -- "$2"
enter "./${1##*/}" "${PWD%/}/${1##*/}" || fail "$1 was changed while it was looked at"
[ -z "$5" ] || chown -h "$5" .
now=$(stat -c %a .)
want=$(printf %o $((0$4 | 0$now & 07000)))
[ "$now" = "$want" ] || chmod "0$want" .
