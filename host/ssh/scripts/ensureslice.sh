# ensureslice POINTS ABOVE START SET ...: ABOVE is lines of PATH|CALL that make the slices
# above; START makes this one with its limits, SET sets them where it is there, and is
# empty if there are none.
points=$1 above=$2 start=$3 set=$4
shift 4
while IFS='|' read -r path call; do
	[ -n "$path" ] || continue
	found=
	for point in $points; do
		[ ! -d "$point$path" ] || found=yes
	done
	[ -n "$found" ] || start "$call" || :
done <<END
$above
END
start "$start" || [ -z "$set" ] || systemd "$set" || fail "systemd failed to set the limits of the slice: $said"
