package hostcheck

import (
	"fmt"
	"strconv"
	"strings"
)

// Free shares, in percent, below which a disk gets a warning or a failure.
const (
	littleFree = 15 // a kubelet evicts pods at this share of the image file system
	leastFree  = 5
)

// usage is one line of df -P: blocks of 1 KiB, or inodes.
type usage struct {
	device      string
	size, avail int64
	mount       string
}

// parseDF parses the output of df -P -k or df -P -i for one path. Device and mount point may
// contain spaces; only numbers stand between them.
func parseDF(out string) (usage, error) {
	bad := fmt.Errorf("cannot parse df output %.200q", out)
	lines := strings.Split(strings.TrimRight(out, "\n"), "\n")
	if len(lines) != 2 {
		return usage{}, bad
	}
	f := strings.Fields(lines[1])
	for i := 1; i+4 < len(f); i++ {
		size, err1 := column(f[i])
		_, err2 := column(f[i+1])
		avail, err3 := column(f[i+2])
		if err1 != nil || err2 != nil || err3 != nil || f[i+3] != "-" && !strings.HasSuffix(f[i+3], "%") {
			continue
		}
		return usage{strings.Join(f[:i], " "), size, avail, strings.Join(f[i+4:], " ")}, nil
	}
	return usage{}, bad
}

// column parses a number of df. "-" means that the file system does not count it.
func column(s string) (int64, error) {
	if s == "-" {
		return 0, nil
	}
	return strconv.ParseInt(s, 10, 64)
}

// free is the free share in percent; 100 if it is not counted.
func (u usage) free() int {
	if u.size <= 0 {
		return 100
	}
	return int(float64(u.avail) * 100 / float64(u.size))
}

// checkDisk: what is, for example, "below /var/lib/kubelet"; inodes is nil if not known.
func checkDisk(what string, space usage, inodes *usage, fix string) Line {
	found := fmt.Sprintf("%s (on %s): %d %% free (%s of %s)", what, space.mount, space.free(), kibibytes(space.avail), kibibytes(space.size))
	worst := space.free()
	if inodes != nil && inodes.size > 0 {
		found += fmt.Sprintf(" and %d %% of the inodes", inodes.free())
		worst = min(worst, inodes.free())
	}
	found += evicts(space, inodes)
	switch {
	case worst < leastFree:
		return Line{Failure, Disk, found, fix}
	case worst < littleFree:
		return Line{Warning, Disk, found, fix}
	}
	return ok(Disk, "%s", found)
}

// The default evictionHard, in percent.
const (
	nodeFree   = 10 // nodefs.available
	imagesFree = 15 // imagefs.available
	inodesFree = 5  // of both
)

// evicts names the default eviction threshold by which pods would be evicted as soon as the node
// exists, or returns "".
func evicts(space usage, inodes *usage) string {
	at := ""
	switch {
	case space.free() < nodeFree:
		at = fmt.Sprintf("nodefs.available %d%%", nodeFree)
	case inodes != nil && inodes.free() < inodesFree:
		at = fmt.Sprintf("nodefs.inodesFree %d%%", inodesFree)
	case space.free() < imagesFree:
		return fmt.Sprintf("; if it holds images, the default evictionHard (imagefs.available %d%%) would evict pods at once", imagesFree)
	default:
		return ""
	}
	return fmt.Sprintf("; the default evictionHard (%s) would evict pods at once", at)
}

func kibibytes(n int64) string { return size(n << 10) }

// size formats bytes.
func size(bytes int64) string {
	for _, unit := range []struct {
		name  string
		shift uint
	}{{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if v := float64(bytes) / float64(int64(1)<<unit.shift); v >= 1 {
			return fmt.Sprintf("%.1f %s", v, unit.name)
		}
	}
	return fmt.Sprintf("%d bytes", bytes)
}
