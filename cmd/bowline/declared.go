package main

// declaredFeatures are the gates, of those that a node has to declare before the API
// server lets a pod on it make use of them, that this node is as good as: sorted.
var declaredFeatures = []string{
	"ExtendWebSocketsToKubelet",
	"InPlacePodLevelResourcesVerticalScaling",
	"InPlacePodVerticalScalingInitContainers",
	"RestartAllContainersOnContainerExits",
}
