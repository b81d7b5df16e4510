# ensureslice POINTS ABOVE START SET ...: ABOVE has a line PATH|CALL for each parent slice.
# START creates the slice with its limits. SET sets the limits if the slice exists, and is
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
