# filesizes DIR NAME...: prints one line with a letter for each DIR/NAME: f for a regular
# file, o for any other, - for none. Then the size of each regular file in bytes.
dir=$1 kinds=
shift
for name; do
	shift
	path=$dir/$name
	if [ -L "$path" ]; then
		kinds=${kinds}o
	elif [ -f "$path" ]; then
		kinds=${kinds}f
		set -- "$@" "$path"
	elif [ -e "$path" ]; then
		kinds=${kinds}o
	else
		kinds=$kinds-
	fi
done
printf '%s\n' "$kinds"
[ $# -eq 0 ] || exec stat -c %s -- "$@"
