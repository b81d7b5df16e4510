# sample HOSTFILES CGROUPFILES BASE NETWORKS SKIP N TREE... PATH...: reads counters with one
# awk, whatever their number. HOSTFILES has a line for each file of the host: code, digest
# (see machine.Digest), path, keys. CGROUPFILES has one for each file of a cgroup: code, digest,
# directory of the hierarchy, name, keys. BASE is the hierarchy in which the N trees are looked
# for. NETWORKS is yes or empty, and SKIP has the UIDs of pods whose network is not read.
#
# It prints, each with a key and NULs: the counters, and for each PATH what measure prints. A
# line of the counters is a code and the digest; "=" and a cgroup, to which the next lines belong;
# "@" and a cgroup, to which the next interfaces belong; "+" and an interface.
set +e
host=$1 cgroups=$2 base=$3 networks=$4 skip=$5 n=$6
shift 6
dirs() {
	for tree; do
		[ "$left" -gt 0 ] || return 0
		left=$((left - 1))
		for dir in "$base$tree" "$base$tree"/*/ "$base$tree"/*/*/ "$base$tree"/*/*/*/; do
			[ ! -d "$dir" ] || printf '%s\n' "${dir%/}"
		done
	done
}
left=$n
printf 'counters\0'
dirs "$@" | BOWLINE_HOST=$host BOWLINE_CGROUPS=$cgroups BOWLINE_BASE=$base BOWLINE_NETWORKS=$networks BOWLINE_SKIP=$skip awk '
# digest prints what is needed of a file; keys begin at f[from].
function digest(code, kind, file, from,    line, out, i, v, got, has, r) {
	if (kind == "k")
		for (i = from; i <= nf; i++)
			got[f[i]] = "-"
	out = ""
	has = 0
	while ((r = (getline line < file)) > 0) {
		has++
		if (kind == "1") {
			out = line
			break
		}
		if (kind == "k") {
			if (split(line, v, " ") > 1 && v[1] in got)
				got[v[1]] = v[2]
		} else if (kind != "n") {
			if (kind == "p")
				gsub(/[a-z0-9.]+=/, "", line)
			if (length(out) + length(line) > 49152) # machine.maxDigest
				break
			out = out (has > 1 ? ";" : "") line
		}
	}
	close(file)
	if (r < 0 || !has && kind != "n")
		return
	if (kind == "n")
		out = has
	if (kind == "k")
		for (i = from; i <= nf; i++)
			out = out (i > from ? " " : "") got[f[i]]
	print code " " out
}

function cgroup(path,    i) {
	print "=" path
	for (i = 1; i <= nc; i++) {
		nf = split(cfiles[i], f, " ")
		digest(f[1], f[2], f[3] path "/" f[4], 5)
	}
}

# interfaces prints those of a network, and reports whether it has any.
function interfaces(file,    line, any) {
	any = 0
	while (any < 64 && (getline line < file) > 0)
		if (line ~ /:/ && line !~ /^ *(lo|veth|docker|nerdctl)/) {
			gsub(/ +/, " ", line)
			print "+" line
			any++
		}
	close(file)
	return any
}

function above(path) {
	sub(/\/[^\/]*$/, "", path)
	return path
}

function ofpod(path) {
	return path ~ /[\/-]pod[0-9a-f][0-9a-f_-]+(\.slice)?$/
}

# network prints the network of the pod with this container, once.
function network(path,    pod, uid, file, pid) {
	pod = above(path)
	if (pod in done || !ofpod(pod))
		return
	uid = pod
	sub(/.*pod/, "", uid)
	sub(/\.slice$/, "", uid)
	gsub(/_/, "-", uid)
	if (uid in skip)
		return
	file = base path "/cgroup.procs"
	if ((getline pid < file) > 0 && pid > 0) {
		print "@" pod
		if (interfaces("/proc/" pid "/net/dev"))
			done[pod] = 1
	}
	close(file)
}

BEGIN {
	base = ENVIRON["BOWLINE_BASE"]
	nh = split(ENVIRON["BOWLINE_HOST"], hfiles, "\n")
	nc = split(ENVIRON["BOWLINE_CGROUPS"], cfiles, "\n")
	ns = split(ENVIRON["BOWLINE_SKIP"], uids, " ")
	for (i = 1; i <= ns; i++)
		skip[uids[i]] = 1
	for (i = 1; i <= nh; i++) {
		nf = split(hfiles[i], f, " ")
		digest(f[1], f[2], f[3], 4)
	}
	if (ENVIRON["BOWLINE_NETWORKS"])
		interfaces("/proc/net/dev")
	cgroup("")
}

{
	path = substr($0, length(base) + 1)
	if (ofpod(above(above(path))))
		next
	cgroup(path)
	if (ENVIRON["BOWLINE_NETWORKS"])
		network(path)
}'
code=$?
printf '\0'
[ "$code" -eq 0 ] || printf 'awk\0%s\0' "$code"
shift "$n"
filesystems "$@"
exit 0
