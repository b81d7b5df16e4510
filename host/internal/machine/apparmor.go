package machine

import "strings"

// AppArmor reads the kernel module's parameter "enabled"; it is empty if the kernel lacks the
// module.
func AppArmor(enabled string) bool { return strings.HasPrefix(enabled, "Y") }
