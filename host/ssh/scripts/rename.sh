# rename FROM TO: fails if TO exists.
[ -e "$1" ] || [ -L "$1" ] || fail "$1: No such file or directory"
if [ -e "$2" ] || [ -L "$2" ]; then
	fail "$2: File exists"
fi
exec mv -fT -- "$1" "$2"
