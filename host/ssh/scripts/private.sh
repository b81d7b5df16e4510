# private: runs $script with our arguments in a private mount namespace, in which no later
# mount appears. If it cannot create one, it runs $script in ours.
if unshare -m true 2>/dev/null; then
	# Before util-linux 2.27 unshare(1) left mounts shared.
	exec unshare -m sh -c "mount --make-rprivate / 2>/dev/null
$script" sh "$@"
fi
eval "$script"
