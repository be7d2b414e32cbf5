file = "mnt/cell#age.npy"
set terminal dumb 78 16
unset key
bin(x) = 10 * floor(x / 10)
set boxwidth 8
set xlabel "age"
set xrange [14:76]
set yrange [0:*]
plot file binary skip=128 format="%int32" using (bin($1)):(1) smooth frequency with boxes
