package cluster

import (
	_ "embed"
	"os"

	"github.com/bowline-k8s/bowline/lab/layout"
)

// auditPolicy says what of a request is logged, and of whose: who asked, for what, and
// what was answered, and never the object itself.
//
//go:embed audit.yaml
var auditPolicy []byte

func auditPolicyFile(lab layout.Lab) string { return lab.Path("audit-policy.yaml") }

// AuditLog is where the API server of a lab that is audited logs: JSON events, one a line.
func AuditLog(lab layout.Lab) string { return lab.Path("logs", "audit.log") }

// WriteAuditPolicy writes what the API server of a lab that is audited reads.
func WriteAuditPolicy(lab layout.Lab) error {
	return os.WriteFile(auditPolicyFile(lab), auditPolicy, 0o644)
}

func auditArguments(lab layout.Lab) []string {
	return []string{
		"--audit-policy-file=" + auditPolicyFile(lab),
		"--audit-log-path=" + AuditLog(lab),
		"--audit-log-maxsize=2000", // MB: whoever reads it looks for one file
	}
}
