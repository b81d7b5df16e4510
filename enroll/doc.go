// Package enroll makes a Host object of a machine that somebody may log in to, takes it
// away again, and shows what became of the hosts there are.
//
//	request.go   PURE: what a person asks for, checked and completed
//	key.go       the key that Bowline logs in with, and its line of authorized_keys
//	add.go       one host, step by step; a step that fails can be gone on from
//	objects.go   the Secret and the Host
//	machine.go   the machine by ssh: its host keys, a login, the line, the preflight
//	wait.go      a Host is followed until its node is Ready
//	remove.go    a Host is deleted, and what its end waits for is shown
//	look.go      hosts, nodes and pods, read at once
//	table.go     PURE: what was read, as columns for a person
//
// It asks through an Asker and tells through a Reporter: there is no terminal in it.
package enroll
