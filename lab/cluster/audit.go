package cluster

import (
	_ "embed"
	"os"

	"github.com/bowline-k8s/bowline/lab/layout"
)

// auditPolicy selects the requests that are logged. The log says who asked for what and the status
// of the answer, and never holds the object itself.
//
//go:embed audit.yaml
var auditPolicy []byte

func auditPolicyFile(lab layout.Lab) string { return lab.Path("audit-policy.yaml") }

// AuditLog is the path of the API server's audit log, if the lab has one: one JSON event a line.
func AuditLog(lab layout.Lab) string { return lab.Path("logs", "audit.log") }

// WriteAuditPolicy writes the policy that the API server of an audited lab reads.
func WriteAuditPolicy(lab layout.Lab) error {
	return os.WriteFile(auditPolicyFile(lab), auditPolicy, 0o644)
}

func auditArguments(lab layout.Lab) []string {
	return []string{
		"--audit-policy-file=" + auditPolicyFile(lab),
		"--audit-log-path=" + AuditLog(lab),
		"--audit-log-maxsize=2000", // MB: so that a reader finds one file
	}
}
