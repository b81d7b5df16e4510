// Package twin runs the same manifests on a node of a real kubelet and on one of
// Bowline's, and compares what the API server was told: each change of the pods' statuses,
// and each event.
//
// A Recording is what a watch saw of one scenario on one node, from before the pod was
// made until it was gone and no event came any more. Normalise, which is pure, turns it
// into a Timeline: tracks (the pod's phase; its conditions, each by itself; each container's
// state, and its flags ready and started; the status' other fields), events by the part of
// the pod that they are of, the lives of each container, and two whole statuses: the last
// one before the deletion, and the last one of all. What the normaliser takes out is a
// closed list (normalise.go): names that differ from node to node, and times.
//
// Compare, which is pure as well, says what differs:
//
//   - A track is a sequence of distinct values. Who reports may put two changes into one
//     write, so a value of one side may be missing on the other if it was there for less
//     than passingTime, if nothing stands in its place, and if it is of a kind that tells
//     nothing that its neighbours do not (passing, in compare.go). All else must be in
//     both, in the same order. A condition that flips is never passing.
//   - The whole statuses are compared field by field; of times only that they are there.
//   - Events are compared part by part, in the order in which they came: type, reason,
//     message and who reports. How often one came must be the same, but of reasons that
//     come again by a clock (clocked, in compare.go), where the counts must be near each
//     other.
//   - The lives of a container (from one start to its end) must be as many, and have ended
//     alike; how long each took, and how long the container waited before it, must agree to
//     nearTime and nearPart. So must the times from deletion to the end.
//   - What started or ended before what, across containers of a pod, must not be the other
//     way round where a second lies between.
//
// Two kubelets bound the noise: each scenario runs on two of them, and what differs between
// those two is noise, kept in the results beside what differs between the kubelets and
// Bowline. A difference of Bowline's is one that it has to both kubelets.
//
// The run needs a lab: BOWLINE_E2E=1 BOWLINE_TWIN=1, or make twin. Its results are in
// docs/twin.json; each difference must have its reason in causes.yaml, or the run fails.
// docs/conformance.md shows both. Without a lab the tests judge the judge: recordings of
// kubelets in testdata are alike, and mutants of them are not.
package twin
