package machine

import "strings"

// AppArmor reads the module's parameter "enabled", which a kernel without the module
// does not have.
func AppArmor(enabled string) bool { return strings.HasPrefix(enabled, "Y") }
