# statall PATH...: in one line the numbers of those that are there, then the state of
# each as parseState reads it.
number=0 there=
for path; do
	shift
	if [ -e "$path" ] || [ -L "$path" ]; then
		there="$there $number"
		set -- "$@" "$path"
	fi
	number=$((number + 1))
done
[ $# -gt 0 ] || exit 0
printf '%s\n' "$there"
exec stat -c 'x%f %s %i %d %g %Y %y' -- "$@"
