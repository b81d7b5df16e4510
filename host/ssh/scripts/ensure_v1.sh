# ensure_v1 PATH CPUSET CONTROLLERS SETTINGS DIR...: creates the directories. CPUSET is the
# hierarchy in which a new group has no CPUs until the script copies its parent's.
full=$1 cpuset=$2 have=$3 set=$4
shift 4
for dir; do
	[ -d "$dir" ] || {
		mkdir -p -- "$@"
		break
	}
done
if [ -n "$cpuset" ]; then
	IFS=/
	set -f
	set -- ${full#/}
	unset IFS
	set +f
	dir=$cpuset
	for element; do
		parent=$dir dir=$dir/$element
		for file in cpuset.cpus cpuset.mems; do
			now= above=
			read -r now <"$dir/$file" || :
			[ -z "$now" ] || continue
			read -r above <"$parent/$file" || :
			put "$above" "$dir/$file"
		done
	done
fi
settings "$have" "$set"
