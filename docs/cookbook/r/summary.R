arguments <- commandArgs(FALSE)
here <- dirname(sub("--file=", "", grep("--file=", arguments, value = TRUE)))
source(file.path(here, "npy.R"))

age <- read_npy("mnt/cell#age.npy")
score <- read_npy("mnt/cell,gene#score.npy")
marker <- read_npy("mnt/gene#is_marker.npy")

print(summary(age))
cat("score:", dim(score), "\n")
cat("mean score of marker genes:", format(mean(score[, marker]), digits = 6), "\n")
