# compress PATH TEMPORARY: compresses PATH to TEMPORARY and renames that to PATH.gz.
[ -e "$1" ] || [ -L "$1" ] || fail "$1: No such file or directory"
[ -f "$1" ] && [ ! -L "$1" ] || fail "$1: not a regular file"
command -v gzip >/dev/null || fail "the machine has no program gzip"
set -C
umask 077
nice -n 19 gzip -c <"$1" >"$2" && chmod "$(stat -c %a -- "$1")" -- "$2" && mv -fT -- "$2" "$1.gz" || {
	rm -f -- "$2"
	exit 1
}
exec rm -- "$1"
