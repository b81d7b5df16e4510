package machine

import (
	"bytes"
	"encoding/hex"
	"math"
	"math/bits"
	"strconv"
	"strings"
)

// FirstOf is the first value that is not empty.
func FirstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// Smaller returns the smaller of two numbers; zero means unknown.
func Smaller(a, b int64) int64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// PrettyName reads os-release(5): PRETTY_NAME, else NAME; the last assignment wins.
func PrettyName(data []byte) string {
	values := map[string]string{}
	for line := range bytes.Lines(data) {
		key, value, ok := strings.Cut(strings.TrimSpace(string(line)), "=")
		if !ok || strings.HasPrefix(key, "#") {
			continue
		}
		if len(value) >= 2 && (value[0] == '"' || value[0] == '\'') && value[len(value)-1] == value[0] {
			quoted := value[0] == '"'
			value = value[1 : len(value)-1]
			if quoted {
				value = strings.NewReplacer(`\"`, `"`, `\$`, `$`, `\\`, `\`, "\\`", "`").Replace(value)
			}
		}
		values[key] = value
	}
	return FirstOf(values["PRETTY_NAME"], values["NAME"])
}

// Count parses a count; 0 if s is not a number or negative.
func Count(s string) int64 {
	n, _ := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	return max(n, 0)
}

// Times multiplies two counts; on overflow the result is math.MaxInt64.
func Times(a, b int64) int64 {
	if high, low := bits.Mul64(uint64(a), uint64(b)); high == 0 && low <= math.MaxInt64 {
		return int64(low)
	}
	return math.MaxInt64
}

// maxList is more CPUs than any kernel supports.
const maxList = 1 << 16

// CountList counts the members of a list such as "0-3,8"; 0 if the list is invalid.
func CountList(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(lo)
		if err != nil {
			return 0
		}
		b := a
		if isRange {
			if b, err = strconv.Atoi(hi); err != nil || b < a {
				return 0
			}
		}
		if a < 0 || b >= maxList || n > maxList {
			return 0
		}
		n += b - a + 1
	}
	return n
}

// Meminfo returns one value of /proc/meminfo in bytes.
func Meminfo(data []byte, key string) int64 {
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) >= 2 && fields[0] == key+":" {
			return Times(Count(fields[1]), 1024)
		}
	}
	return 0
}

// PageSizeName is the kernel's short form in file names, "2MB".
func PageSizeName(kb int64) string {
	switch {
	case kb >= 1<<20:
		return strconv.FormatInt(kb>>20, 10) + "GB"
	case kb >= 1<<10:
		return strconv.FormatInt(kb>>10, 10) + "MB"
	}
	return strconv.FormatInt(kb, 10) + "KB"
}

// HasCapability reads the bounding set, because the container runtime can grant only capabilities in
// that set.
func HasCapability(status []byte, capability uint) bool {
	for line := range bytes.Lines(status) {
		value, ok := strings.CutPrefix(string(line), "CapBnd:")
		if !ok {
			continue
		}
		set, err := hex.DecodeString(strings.TrimSpace(value))
		if err != nil || int(capability/8) >= len(set) {
			return false
		}
		return set[len(set)-1-int(capability/8)]&(1<<(capability%8)) != 0
	}
	return false
}

// DefaultInterface reads /proc/net/route and returns the interface of the default route with the
// lowest metric.
func DefaultInterface(table []byte) string {
	best, bestMetric := "", uint64(0)
	for line := range bytes.Lines(table) {
		// Iface Destination Gateway Flags RefCnt Use Metric Mask ...
		f := strings.Fields(string(line))
		if len(f) < 8 || f[1] != "00000000" || f[7] != "00000000" {
			continue
		}
		metric, err := strconv.ParseUint(f[6], 10, 32)
		if err == nil && (best == "" || metric < bestMetric) {
			best, bestMetric = f[0], metric
		}
	}
	return best
}
