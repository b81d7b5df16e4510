package machine

import (
	"slices"
	"testing"
)

func TestSELinux(t *testing.T) {
	for _, c := range []struct {
		enforce, label     string
		enabled, enforcing bool
	}{
		{"", "", false, false},                                // no selinuxfs
		{"", "unconfined\n", false, false},                    // AppArmor's label
		{"0", "kernel\x00", false, false},                     // no policy is loaded
		{"0", "system_u:system_r:init_t:s0\x00", true, false}, // permissive
		{"1", "unconfined_u:unconfined_r:unconfined_t:s0\n", true, true},
	} {
		if enabled, enforcing := SELinux(c.enforce, c.label); enabled != c.enabled || enforcing != c.enforcing {
			t.Errorf("%+v: enabled %v, enforcing %v", c, enabled, enforcing)
		}
	}
}

func TestSwaps(t *testing.T) {
	const header = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	if got := Swaps([]byte(header)); got != nil {
		t.Errorf("without swap: %q", got)
	}
	got := Swaps([]byte(header + "/dev/dm-1   partition 2097148 0 -2\n/swapfile file 1048572 0 -3\n"))
	if !slices.Equal(got, []string{"/dev/dm-1", "/swapfile"}) {
		t.Errorf("areas %q", got)
	}
	if Swaps(nil) != nil {
		t.Error("a kernel without /proc/swaps has areas")
	}
}

func TestThermalThrottle(t *testing.T) {
	got := ThermalThrottle([]string{"/sys/devices/system/cpu/cpu10/thermal_throttle", "/sys/devices/system/cpu/cpu2/thermal_throttle", "/else"})
	if !slices.Equal(got, []int{2, 10}) {
		t.Errorf("CPUs %v", got)
	}
}
