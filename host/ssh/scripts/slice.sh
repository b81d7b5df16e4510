# systemd CALL: asks systemd; CALL has no white space within an argument. $said is what
# it said, also after a failure.
systemd() {
	set -f
	# shellcheck disable=SC2086
	if said=$(LC_ALL=C busctl $1 2>&1); then
		set +f
		return 0
	fi
	set +f
	return 1
}

# start CALL: makes a slice. Fails quietly where there is one already.
start() {
	systemd "$1" && return 0
	case $said in
	*already*) return 1 ;;
	esac
	fail "systemd failed to create the slice: $said"
}
