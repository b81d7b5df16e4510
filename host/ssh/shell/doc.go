// Package shell runs scripts on a host through long-lived shells: a request takes one round
// trip, where an exec of sshd takes three, and the sessions stay within sshd's limit.
//
// A Shell is one sh that runs loop.sh, started by Config.Start; a Pool is a few of them. A
// request has a script, its arguments, its standard input and a time limit; the answer is the
// output of the script and its exit code. A random number that the script cannot know marks the
// frames, so any bytes can pass in both directions.
//
// Scripts of ours run inside (Request.Inside): in a subshell of the loop, which starts no
// process for them. Then the script's text, arguments and input are in no process's arguments.
// This side enforces the time limit: when it gives up, another shell kills the process group of
// the shell. Any other script runs under timeout(1) in its own process group, which is killed
// completely when the script ends; its text and arguments are in those of its process, its
// standard input and output are not.
//
// If the context of a request ends first, its shell is closed and replaced.
package shell
