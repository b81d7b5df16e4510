package ssh

import (
	"bytes"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host"
)

// parseInfos parses records of three fields that each end with a NUL: the state, the name and
// the target of a link. The state is the format of GNU find,
//
//	f 644 SIZE INODE DEVICE GROUP SECONDS.FRACTION
//
// or, after an x, that of stat(1) with the mode in hexadecimal:
//
//	x81a4 SIZE INODE DEVICE GROUP SECONDS YYYY-MM-DD HH:MM:SS.FRACTION ZONE
//
// The result is sorted by name.
func parseInfos(data []byte) ([]host.FileInfo, error) {
	if len(data) == 0 {
		return []host.FileInfo{}, nil
	}
	fields := bytes.Count(data, []byte{0})
	if !bytes.HasSuffix(data, []byte{0}) || fields%3 != 0 {
		return nil, fmt.Errorf("a record is cut off: %.200q", data)
	}
	infos := make([]host.FileInfo, 0, fields/3)
	for rest := string(data); rest != ""; {
		var state, name, target string
		state, rest, _ = strings.Cut(rest, "\x00")
		name, rest, _ = strings.Cut(rest, "\x00")
		target, rest, _ = strings.Cut(rest, "\x00")
		i, err := parseState(state)
		if err != nil {
			return nil, err
		}
		i.Name, i.Target = name, target
		infos = append(infos, i)
	}
	slices.SortFunc(infos, func(a, b host.FileInfo) int { return strings.Compare(a.Name, b.Name) })
	return infos, nil
}

// stateFields is the most fields of a state.
const stateFields = 9

func parseState(s string) (i host.FileInfo, err error) {
	bad := fmt.Errorf("a file's state is %.200q", s)
	f := strings.SplitN(s, " ", stateFields+1)
	fraction := ""
	if raw, isRaw := strings.CutPrefix(f[0], "x"); isRaw {
		if len(f) < 6 {
			return i, bad
		}
		mode, err := strconv.ParseUint(raw, 16, 32)
		if err != nil {
			return i, bad
		}
		i.Mode = rawMode(uint32(mode))
		if len(f) > 7 {
			_, fraction, _ = strings.Cut(f[7], ".")
		}
		f = f[1:]
	} else {
		if len(f) != 7 || len(f[0]) != 1 {
			return i, bad
		}
		perm, err := strconv.ParseUint(f[1], 8, 12)
		if err != nil {
			return i, bad
		}
		i.Mode = rawMode(uint32(perm)) | letterMode(f[0][0])
		f = f[2:]
		f[4], fraction, _ = strings.Cut(f[4], ".")
	}
	size, err1 := strconv.ParseInt(f[0], 10, 64)
	inode, err2 := strconv.ParseUint(f[1], 10, 64)
	device, err3 := strconv.ParseUint(f[2], 10, 64)
	group, err4 := strconv.ParseInt(f[3], 10, 64)
	seconds, err5 := strconv.ParseInt(f[4], 10, 64)
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || err5 != nil || size < 0 {
		return i, bad
	}
	i.Size, i.Inode, i.Device, i.GID = size, inode, device, group
	i.Time = time.Unix(seconds, nanoseconds(fraction))
	return i, nil
}

// nanoseconds parses the digits after a decimal point; zero if they are none.
func nanoseconds(digits string) int64 {
	digits = (digits + "000000000")[:9]
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil {
		return 0
	}
	return int64(n)
}

// rawMode converts st_mode to fs.FileMode.
func rawMode(m uint32) fs.FileMode {
	mode := fs.FileMode(m & 0o777)
	for bit, special := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if m&bit != 0 {
			mode |= special
		}
	}
	switch m & 0o170000 {
	case 0o140000:
		mode |= fs.ModeSocket
	case 0o120000:
		mode |= fs.ModeSymlink
	case 0o060000:
		mode |= fs.ModeDevice
	case 0o040000:
		mode |= fs.ModeDir
	case 0o020000:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case 0o010000:
		mode |= fs.ModeNamedPipe
	}
	return mode
}

// letterMode converts the type that find prints for %y.
func letterMode(l byte) fs.FileMode {
	switch l {
	case 'f':
		return 0
	case 'd':
		return fs.ModeDir
	case 'l':
		return fs.ModeSymlink
	case 's':
		return fs.ModeSocket
	case 'p':
		return fs.ModeNamedPipe
	case 'b':
		return fs.ModeDevice
	case 'c':
		return fs.ModeDevice | fs.ModeCharDevice
	}
	return fs.ModeIrregular
}
