"""Invented traces, one of each format."""

GAVEL = """\
Toy (batch size 8)\tpython toy.py --data %s/toy\ttoys\t--steps\t1\t1000\t1\t1\t-1.000000\t0
Toy (batch size 8)\tpython toy.py --data %s/toy\ttoys\t--steps\t0\t2500\t4\t5\t1.2\t90.25
"""

GAVEL_OLD = """\
Toy (batch size 8)\tcd toys && python toy.py\t--steps\t1\t1000\t0.000000\t1
Toy (batch size 8)\tcd toys && python toy.py\t--steps\t1\t2500\t90.250000\t4
"""

GAVEL_JOBS = """\
#job_type\ttotal_steps\tscale_factor\tpriority_weight\tSLO\tduration_s_on_v100\tarrival_s
Toy (batch size 8)\t1000.5\t1\t1.0\tNone\t100.05\t0.0
Toy (batch size 8)\t2500.25\t4\t5.0\t1.2\t62.5\t90.25
"""

SHOCKWAVE = """\
Toy (batch size 8)\tpython toy.py --data %s/toy\ttoys\t--steps\t1\t1000\t1\tgns\t1\t-1.000000\t100\t0
Toy (batch size 8)\tpython toy.py --data %s/toy\ttoys\t--steps\t1\t2500\t4\tstatic\t1\t-1.000000\t63\t90
"""

POLLUX = """\
name,time,application,num_replicas,batch_size
toy-0,1.5,toy,1,8
toy-1,90.25,toy,4,32
"""

PHILLY = """\
timestamp,duration,num_gpus,gpu_time,cluster
2031-05-06 10:00:30,60.0,4,240.0,vc2
2031-05-06 10:00:00,90.5,1,90.5,vc1
"""

SLURM = """\
JobID|JobName|User|Partition|Submit|Elapsed|AllocTRES|ReqTRES|State
12|toy|ann|long|2031-05-06T10:00:30|1-00:00:10|billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2|gres/gpu=2|COMPLETED
12.batch|batch|||2031-05-06T10:00:30|1-00:00:10|cpu=8,gres/gpu=2||COMPLETED
11|toy|bob|short|2031-05-06T10:00:00|00:05|gres/gpu=1||FAILED
13|toy|bob|short|2031-05-06T10:01:00|00:00:00|||CANCELLED by 1000
14|build|bob|short|2031-05-06T10:02:00|00:10:00|cpu=4||COMPLETED
15|toy|bob|short|2031-05-06T10:03:00|00:10:00||gres/gpu:v100=8|RUNNING
"""

CSV = """\
arrival_s,workload,scale,steps,deadline_s,min_workers,max_workers,gpu_types,user,team
0,toy,2,1000,,1,4,a100;v100,ann,red
0.1,toy,1,,3600,1,1,,bob,
"""

ALL = {
    "gavel": GAVEL,
    "gavel-old": GAVEL_OLD,
    "gavel-jobs": GAVEL_JOBS,
    "shockwave": SHOCKWAVE,
    "pollux": POLLUX,
    "philly": PHILLY,
    "slurm": SLURM,
    "csv": CSV,
}
