# private: runs $script with our arguments in a mount namespace of its own, in which
# nothing appears that is mounted elsewhere later; in ours where there is none to be had.
if unshare -m true 2>/dev/null; then
	# Before util-linux 2.27 unshare(1) left mounts shared.
	exec unshare -m sh -c "mount --make-rprivate / 2>/dev/null
$script" sh "$@"
fi
eval "$script"
