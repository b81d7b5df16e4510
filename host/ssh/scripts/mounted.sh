# survey: sets $height to the number of mounts that are stacked at $real, and what mountinfo has
# of the topmost one: $top, its type and source, and $flags, its options and those of its file
# system. A pod can make the roots in mountinfo so long that a shell cannot handle them in
# time, so sed removes them first.
survey() {
	height=0 top= flags= ifs=$IFS
	stacked=$(sed -n -e "\\,^[^ ]* [^ ]* [^ ]* [^ ]* $pattern ,!d" -e 's/^[^ ]* [^ ]* [^ ]* [^ ]* //p' /proc/self/mountinfo) ||
		fail "cannot read /proc/self/mountinfo"
	IFS='
'
	set -f
	for line in $stacked; do
		height=$((height + 1)) top=${line#* - } flags=${line#* }
	done
	IFS=$ifs
	[ -z "$top" ] || flags=${flags%% *},${top##* }
	set +f
}
