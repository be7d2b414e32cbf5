cd /tmp/wt/lookb; . /tmp/wt/env.sh look; cd /tmp/wt/lookb
B=$1; N=$2
rm -rf store.h5.checkouts
$B mount --checkout bench store.h5 mnt || exit 1
pid=$($VENV/bin/python -c "import json;print(json.load(open('mnt/.npyfs/status.json'))['pid'])")
m() { for p in $pid $(pgrep -P $pid); do echo $1 $p $(grep -E "VmRSS|VmHWM" /proc/$p/status | awk '{print $1,$2/1024}') $(tr '\0' ' ' < /proc/$p/cmdline|cut -c1-40); done; }
m start
timeout 300 cp -r src$N mnt/digits; sync mnt/digits/000000.npy
m written
ls mnt/digits | wc -l; m listed
timeout 60 $B umount mnt
