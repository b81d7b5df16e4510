# systemd CALL: calls systemd; no argument in CALL has white space. $said is the output, even
# after a failure.
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

# start CALL: creates a slice. It fails without a message if the slice exists.
start() {
	systemd "$1" && return 0
	case $said in
	*already*) return 1 ;;
	esac
	fail "systemd failed to create the slice: $said"
}
