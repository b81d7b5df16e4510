# list DIR, by the function of stat_plain.
[ -d "$1/." ] || { stat -- "$1/." >/dev/null; fail "Not a directory"; }
for entry in "$1"/* "$1"/.[!.]* "$1"/..?*; do
	[ -L "$entry" ] || [ -e "$entry" ] || continue
	info "$entry" 2>/dev/null || [ ! -e "$entry" ] || [ ! -L "$entry" ] || info "$entry"
done
