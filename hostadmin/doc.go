// Package hostadmin makes a Host object of a machine that the user may log in to, removes it again, and
// shows the state of the hosts.
//
//	request.go   pure: the user's request, checked and completed
//	key.go       the key that Bowline logs in with, and its line of authorized_keys
//	add.go       adds one host, step by step; after a failed step it can be called again
//	objects.go   the Secret and the Host
//	rights.go    gives Bowline's service account the rights for one Host; grant.go has the objects
//	machine.go   the machine over SSH: its host keys, a login, the line, the preflight check
//	hostkeys.go  which host keys are trusted; jumps.go: those of the jumps
//	wait.go      follows a Host until its node is Ready; remains.go shows what is left to do
//	remove.go    deletes a Host, and shows what its deletion waits for
//	check.go     how a machine is reached for its check, with and without a Host
//	why.go       asks a node about one of its pods
//	look.go      reads hosts, nodes and pods
//	table.go     pure: formats what was read as columns
//
// It asks through an Asker and reports through a Reporter; it does not use a terminal itself.
package hostadmin
