package rules

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Reason says why there are no rules, as the reason of a condition.
type Reason string

const (
	// NoNFTables: the kernel lacks nf_tables, or one of the expressions of the rules.
	NoNFTables Reason = "NoNFTables"
	// NATInUse: before Linux 4.18, nftables cannot translate addresses while iptables does.
	NATInUse Reason = "NATInUse"
	// NotPermitted: the process lacks CAP_NET_ADMIN.
	NotPermitted Reason = "NotPermitted"
	// AnotherHelper: a process that runs owns the tables.
	AnotherHelper Reason = "AnotherHelper"
	// Failed: anything else.
	Failed Reason = "RulesFailed"
)

// Error is the error of Open and Apply.
type Error struct {
	Reason Reason
	Err    error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

const netlinkPermission = unix.EPERM

// reasons are what the kernel's answers mean. nf_tables answers ENOENT for an expression or a type of chain
// that it has no module for, and EBUSY for a NAT hook that is taken.
var reasons = []struct {
	errno  unix.Errno
	reason Reason
}{
	{unix.EPERM, NotPermitted},
	{unix.EBUSY, NATInUse},
	{unix.EPROTONOSUPPORT, NoNFTables},
	{unix.EAFNOSUPPORT, NoNFTables},
	{unix.EOPNOTSUPP, NoNFTables},
	{unix.ENOENT, NoNFTables},
}

// explain makes an Error of what the kernel answered.
func explain(what string, err error) error {
	for _, r := range reasons {
		if errors.Is(err, r.errno) {
			return &Error{Reason: r.reason, Err: fmt.Errorf("%s: %w", what, err)}
		}
	}
	return &Error{Reason: Failed, Err: fmt.Errorf("%s: %w", what, err)}
}
