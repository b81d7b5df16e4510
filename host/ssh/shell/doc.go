// Package shell runs scripts on a machine through long-lived shells: one round
// trip a request, where an exec of sshd's costs three, and no more sessions than
// sshd gives.
//
// A Shell is one sh that runs loop.sh, started by a Config.Start; a Pool is a few
// of them. A request carries a script, its arguments, its standard input and a
// time limit; the answer is what the script wrote and its exit code. The frames
// are marked by a random number that the script cannot know, so any bytes pass
// unharmed in both directions. Standard input and the output are never in the
// arguments of a process; the script's text and its arguments are.
//
// What a script leaves behind of its process group is killed when it ends. Each
// script runs under timeout(1); a request whose context ends first costs its
// shell, which is closed and replaced, and the script is killed by another shell.
package shell
