// Package shell runs scripts on a machine through long-lived shells: one round
// trip a request, where an exec of sshd's costs three, and no more sessions than
// sshd gives.
//
// A Shell is one sh that runs loop.sh, started by a Config.Start; a Pool is a few
// of them. A request carries a script, its arguments, its standard input and a
// time limit; the answer is what the script wrote and its exit code. The frames
// are marked by a random number that the script cannot know, so any bytes pass
// unharmed in both directions.
//
// A script of ours runs inside (Request.Inside): in a subshell of the loop, which
// starts no process for it. Neither its text nor its arguments nor its input are in
// the arguments of a process. Its limit is kept from here: giving up on it ends the
// shell's process group, by another shell. Any other runs under timeout(1), with a
// process group of its own, of which nothing is left when it ends; its text and its
// arguments are in those of its process, its standard input and output are not.
//
// A request whose context ends first costs its shell, which is closed and replaced.
package shell
