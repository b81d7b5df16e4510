# ensure_v2 PATH POINT CONTROLLERS SETTINGS: enables the available CONTROLLERS in each
# directory on the way down.
dir=$2 wanted=$3 set=$4
IFS=/
set -f
set -- ${1#/}
unset IFS
set +f
for element; do
	have= open= add=
	read -r have <"$dir/cgroup.controllers" || :
	read -r open <"$dir/cgroup.subtree_control" || :
	for controller in $wanted; do
		if word "$have" "$controller" && ! word "$open" "$controller"; then
			add="$add${add:+ }+$controller"
		fi
	done
	[ -z "$add" ] || (put "$add" "$dir/cgroup.subtree_control") ||
		fail "cgroup $dir cannot give its children controllers; if it has processes of its own, choose another cgroupRoot or move them: Device or resource busy"
	dir=$dir/$element
	[ -d "$dir" ] || mkdir -- "$dir" 2>/dev/null || [ -d "$dir" ] || mkdir -- "$dir"
done
have=
read -r have <"$dir/cgroup.controllers" || :
settings "$have" "$set"
